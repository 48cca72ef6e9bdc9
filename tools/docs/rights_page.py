"""Generator of docs/reference/rights.md from the rules, the routes and the messages of nodes:
`python -m tools.docs.rights_page > docs/reference/rights.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from muster.protocol.roles import Role
from orchestrator.api.routes import ROUTES
from orchestrator.core.rights.link import MESSAGES
from orchestrator.core.rights.principals import Kind, Owned, Policy, Principal, Visibility
from orchestrator.core.rights.rules import RULES, Action, may

_HEAD: Final = """\
# Rights

For administrators and users: after this page you know what each role may do, and what others see of
a job. Made by `python -m tools.docs.rights_page > docs/reference/rights.md` from the rules that the
coordinator applies.

A request comes from a user, who has a role and teams, or from a node. Everything that the tables
do not allow is refused. While a stream is open, rights are checked again every second. [Users and
tokens](../how-to/people.md) says how to give people a role.

- **own**: allowed for the user's own jobs and tokens. **shown**: also for jobs whose line
  `visibility` shows. **all**: for every job. **itself**: for the token of the request.
- `visibility` in the coordinator's configuration says who sees the line of a job in `muster ps`
  besides its owner and operators: `public` (default), `team` or `private`. To users who may not
  read the job, its `reason` has no text. Requests for a job that is not shown get the answer for an
  unknown job (404). Everybody sees the numbers of the jobs that a node has or that failed there,
  how many jobs are ahead of the own one, and in the metrics the traffic of each node. To a user
  whose own job waits for others' jobs, the reason and `explain` name their numbers, and when they
  end at the latest. Only operators see which processes outside all jobs use the GPUs of a node.
- `priority_max` limits priorities by role and team. If several limits apply, the largest counts.
- A rerun passes the hidden values of a job's environment to the new job. Therefore operators, who
  see them as `***`, cannot rerun the jobs of others.
- The environment, commands and webhooks of jobs are shown with secrets as `***` to everybody,
  including their owner.
"""
_ROLES: Final = "| action | | viewer | user | operator | admin |\n|---|---|---|---|---|---|"


def page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *_actions(), "", *_routes(), "", *_messages(), ""])


def _actions() -> Iterator[str]:
    yield "## Users"
    yield ""
    yield _ROLES
    for action in Action:
        if Kind.USER in RULES[action].kinds:
            cells = " | ".join(_cell(action, role) for role in Role)
            yield f"| `{action.value}` | {RULES[action].text} | {cells} |"


def _cell(action: Action, role: Role) -> str:
    who = Principal(Kind.USER, "me", role)
    private = Policy(visibility=Visibility.PRIVATE)
    if may(who, action, None, private):
        return "all" if RULES[action].owned else "yes"
    if may(who, action, Owned("another"), Policy()):
        return "shown"
    if may(who, action, Owned("me"), private):
        return "own"
    return "itself" if may(who, action, Owned("me", itself=True), private) else ""


def _routes() -> Iterator[str]:
    yield "## Routes"
    yield ""
    yield "| route | action |"
    yield "|---|---|"
    for route in ROUTES:
        yield f"| `{route.method} {route.path}` | `{route.action.value}` |"


def _messages() -> Iterator[str]:
    yield "## Messages of nodes"
    yield ""
    yield "Reports of a node on tasks of another node are ignored."
    yield ""
    yield "| message | action |"
    yield "|---|---|"
    for kind, action in MESSAGES.items():
        yield f"| `{kind.__name__}` | `{action.value}` |"


if __name__ == "__main__":
    sys.stdout.write(page())
