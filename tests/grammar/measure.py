"""How many spellings of each formula become fused operators, and which decisions keep the others from it.

Run `python tests/grammar/measure.py --count 200 --seed 1 --formula rope`. `--replay SEED` prints one mixture.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from grammar.choices import Drawing
from grammar.explained import unexplained
from grammar.formulas import FORMULAS
from grammar.judge import Judged, groups, judge
from grammar.listed import FILE, changes, grouped, line
from grammar.writer import Spelling


def mixtures(formula: str, seeds: Iterable[int]) -> Iterator[Spelling]:
    return (FORMULAS[formula](Drawing(seed), f"{formula} {seed}.") for seed in seeds)


def near_misses(formula: str, seeds: Iterable[int]) -> Iterator[Spelling]:
    """Spellings with one place written wrong."""
    for seed in seeds:
        plain = Drawing(seed)
        FORMULAS[formula](plain, "")
        if plain.faults:
            fault = plain.faults[(seed * 7919 + seed // 13) % len(plain.faults)]
            yield FORMULAS[formula](Drawing(seed, fault=fault), f"{formula} {seed}.")


def judged(spellings: Iterable[Spelling], missing: bool = False) -> list[Judged]:
    return [j for group in groups(spellings) for j in judge(group, missing)]


def told(j: Judged) -> str:
    d = j.spelling.drawing
    fault = f", fault={d.fault!r}" if d.fault else ""
    return f"seed={d.seed}{fault}, picks={d.changes()}"


def correlated(seen: list[Judged]) -> list[tuple[float, int, str, str]]:
    """The share of fused spellings among those with an option, the number of those, the decision and the option."""
    total: Counter[tuple[str, str]] = Counter()
    fused: Counter[tuple[str, str]] = Counter()
    for j in seen:
        for pair in j.spelling.drawing.chosen.items():
            total[pair] += 1
            fused[pair] += j.fused
    return sorted((fused[p] / n, n, *p) for p, n in total.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="mixtures of each formula")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--formula", action="append", choices=list(FORMULAS), help="only this one; repeatable")
    parser.add_argument("--misses", type=int, default=0, help="near misses of each formula")
    parser.add_argument("--explain", action="store_true", help="only replay the explanations of single changes")
    parser.add_argument("--list", action="store_true", help="only write unfused.txt anew")
    parser.add_argument("--replay", type=int, help="print the mixture of this seed, of one formula")
    parser.add_argument("--save", type=Path, help="with --replay: write the model there")
    given = parser.parse_args()
    names = given.formula or list(FORMULAS)
    if given.list:
        write_list()
        return
    if given.explain:
        sys.exit(explain(names))
    if given.replay is not None:
        replay(names[0], given.replay, given.save)
        return
    wrong = 0
    for name in names:
        singles = changes([name])
        place = {s.prefix: (decision, option) for (_, decision, option), s in singles.items()}
        single = [j for group in grouped(singles) for j in judge(group)]
        mixed = judged(mixtures(name, range(given.seed, given.seed + given.count)))
        missed = judged(near_misses(name, range(given.seed, given.seed + given.misses)), missing=True)
        print(f"\n== {name}: one change {sum(j.fused for j in single)} of {len(single)} fused", end="")
        print(f"; mixtures {sum(j.fused for j in mixed)} of {len(mixed)}", end="")
        print(f", {sum(j.dearer for j in mixed)} more if parts did not cost less", end="")
        print(f"; near misses {sum(not j.misses for j in missed)} of {len(missed)} are none" if missed else "")
        for fault, n in Counter(j.spelling.drawing.fault for j in missed if not j.misses).items():
            print(f"  no near miss: {n} x {fault}")
        stopped = [j for j in [*single, *mixed, *missed] if j.stopped]
        if stopped:
            print(f"  {len(stopped)} do not saturate, e.g. {told(stopped[0])}")
        for j in [*single, *mixed, *missed]:
            if not j.right:
                wrong += 1
                print(f"WRONG {j.written and 'as written: '}{j.written or j.wrong}\n    {told(j)}")
        for j in single:
            if not j.fused:
                name, option = place[j.spelling.prefix]
                more = {k: v for k, v in j.spelling.drawing.picks.items() if k != name}
                context = f", with {more}" if more else ""
                print(f"  unfused: {name} = {option}{context}   ({j.stopped or 'left: ' + j.left})")
        alone = {place[j.spelling.prefix] for j in single if not j.fused}
        clean = [j for j in mixed if not j.dearer and not alone & set(j.spelling.drawing.chosen.items())]
        if clean:
            print(f"  mixtures of changes that fuse alone: {sum(j.fused for j in clean)} of {len(clean)}")
        for share, n, decision, option in correlated(clean)[:12]:
            if share < 1:
                print(f"    {share:4.0%} of {n:3} with {decision} = {option}")
        for j in [j for j in clean if not j.fused][:3]:
            print(f"    e.g. {told(j)}\n         left: {j.left}")
    sys.exit(bool(wrong))


def explain(names: list[str]) -> int:
    """How many explanations are wrong."""
    wrong = 0
    for name in names:
        count = 0
        for group in grouped(changes([name])):
            fused, faults = unexplained(group)
            count += fused
            wrong += len(faults)
            print(*faults, sep="\n", end="\n" if faults else "", flush=True)
        print(f"{name}: {count} fused operators explained", flush=True)
    return wrong


def write_list() -> None:
    found = changes(FORMULAS)
    names = {s.prefix: change for change, s in found.items()}
    left = {names[j.spelling.prefix] for group in grouped(found) for j in judge(group) if not j.fused}
    head = "# Spellings with one change that do not fuse yet; to be shortened only. Written by measure.py --list\n"
    FILE.write_text(head + "".join(f"{line(change)}\n" for change in found if change in left))


def replay(name: str, seed: int, path: Path | None) -> None:
    from grammar.judge import model_of

    [spelling] = mixtures(name, [seed])
    if path is not None:
        path.write_bytes(model_of([spelling]).SerializeToString())
    [j] = judge([spelling])
    for decision, option in spelling.drawing.chosen.items():
        print(f"{decision:>20}: {option}")
    print(f"right: {j.right} {j.written}{j.wrong}\nfused: {j.fused} {j.left}")


if __name__ == "__main__":
    main()
