"""`python -m lithify` is the command `lithify`."""

from dispatcher.start import main

if __name__ == "__main__":
    main()
