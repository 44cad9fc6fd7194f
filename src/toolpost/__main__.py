"""`python -m toolpost`, which is `toolpost`."""

from toolpost.cli.main import main

if __name__ == "__main__":
    main()
