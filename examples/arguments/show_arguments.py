"""Print the arguments of each rank: they arrive unchanged.

Needs no torch. `muster submit -f job.yaml`, or with arguments of your own:
`muster submit --set launcher=processes -- show_arguments.py --lr 1e-5 'two words' '$HOME'`.
"""

import json
import os
import sys


def main() -> None:
    """Print one line of JSON."""
    print(json.dumps({"rank": os.environ["RANK"], "arguments": sys.argv[1:]}, ensure_ascii=False))


if __name__ == "__main__":
    main()
