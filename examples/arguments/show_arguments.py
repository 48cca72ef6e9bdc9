"""Writes down the arguments that each rank was given: nothing between you and it has touched them.

Needs no torch. `muster submit -f job.yaml --set workdir=$PWD`, or with arguments of your own:
`muster submit --set launcher=processes -- show_arguments.py --lr 1e-5 'two words' '$HOME'`.
"""

import json
import os
import sys


def main() -> None:
    """One line of JSON."""
    print(json.dumps({"rank": os.environ["RANK"], "arguments": sys.argv[1:]}, ensure_ascii=False))


if __name__ == "__main__":
    main()
