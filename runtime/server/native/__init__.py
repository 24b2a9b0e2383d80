"""The endpoints that SGLang's clients speak, and ramet's own."""
