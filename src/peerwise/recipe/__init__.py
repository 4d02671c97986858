"""What a run is: the schema, how it is loaded, checked and planned. No torch, no stage is imported here."""
