"""The page of `ftctl serve`: needs the extra `page`."""
