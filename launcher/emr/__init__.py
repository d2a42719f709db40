"""What Lithify knows of EMR and EMR Serverless without talking to them: names, settings, requests, reasons. Pure."""
