"""The thread that writes logs: in order, and the loop does not wait for it."""

import asyncio
import threading

import pytest

from orchestrator.shell.logs import writer as writer_module
from orchestrator.shell.logs.writer import Writer

PATIENCE_S = 180.0


def test_work_is_done_in_order_and_its_reports_come_before_its_end() -> None:
    async def main() -> None:
        writer, heard = Writer(), []
        here = threading.get_ident()

        def report(number: int) -> None:
            assert threading.get_ident() == here
            heard.append(number)

        def work(number: int) -> None:
            assert threading.get_ident() != here
            writer.post(report, number)

        for number in range(0, 100, 2):
            writer.submit(
                lambda number=number: work(number),  # type: ignore[misc]
                lambda _error, number=number: report(number + 1),  # type: ignore[misc]
            )
        assert await writer.call(lambda: 7) == 7
        assert heard == list(range(100))

    asyncio.run(main())


def test_an_error_is_handed_over_and_the_next_work_is_done() -> None:
    async def main() -> None:
        writer = Writer()

        def fail() -> None:
            raise OSError(5, "Input/output error")

        errors: list[BaseException | None] = []
        writer.submit(fail, errors.append)
        with pytest.raises(OSError, match="Input/output"):
            await writer.call(fail)
        assert await writer.call(lambda: 7) == 7
        assert isinstance(errors[0], OSError)

    asyncio.run(main())


def test_it_is_stalled_while_work_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "UNANSWERED_S", 0.0)

    async def main() -> None:
        writer = Writer()
        begun, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def hang() -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(PATIENCE_S)

        hanging = asyncio.create_task(writer.call(hang))
        await begun.wait()
        assert writer.is_stalled
        assert writer.unanswered_s > 0
        hanging.cancel()
        go_on.set()
        assert await writer.call(lambda: 7) == 7
        assert writer.unanswered_s == 0

    asyncio.run(main())
