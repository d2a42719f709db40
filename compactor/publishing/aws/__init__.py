"""The AWS services that follow what is published."""
