"""python -m presize"""

from presize.cli import main

if __name__ == "__main__":
    main()
