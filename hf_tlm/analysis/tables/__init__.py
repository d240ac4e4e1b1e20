"""Sensitivity tables (TLM, Tables 3 to 7; ISS, Table 5)."""
