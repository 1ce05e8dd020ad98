"""The ResourceSlices of a driver: what its devices look like there, and who keeps them so."""
