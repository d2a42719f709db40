"""The keeper: looks at tables, decides by their policies, and sends instructions for what is due."""
