"""The only package of infra/ that imports boto3."""
