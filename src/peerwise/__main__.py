"""`python -m peerwise`: the same as the `peerwise` command; knows nothing but where that begins."""

from peerwise.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
