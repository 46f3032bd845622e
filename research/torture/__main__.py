import sys

from research.torture.run import main

if __name__ == "__main__":
    sys.exit(main())
