"""ftctl: shows a run of ftrun and sends orders to it."""
