"""What tests share: toys, servers, launchers, plain transcriptions. Tests import from here, never from each other."""
