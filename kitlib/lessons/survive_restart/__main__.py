"""The child process of child.py."""

import sys

from kitlib.lessons.survive_restart.child import end_with_parent, main

if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1:])
