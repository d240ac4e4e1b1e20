"""`python -m hf_tlm` is the command `hf-tlm`."""

from hf_tlm.cli import main

if __name__ == "__main__":
    main()
