"""One module for each reason to do something; `plan` asks them in order."""
