"""The story of a run: config -> data -> model -> loop -> checkpoint.

python train.py model=llama data=text data.path=book.txt
"""

import sys
from pathlib import Path

from data.prefetch import prefetch
from model import build_model
from training.config import compose
from training.corpus import load, reload
from training.distributed import join, leave
from training.ending import ending
from training.folder import check_name
from training.holder import claimed
from training.launch import launch
from training.monitor import Monitor, Silence
from training.opening import open_run
from training.optimizer import make_optimizer
from training.precision import choose, choose_device, hold_memory
from training.preflight import check_parts, plan
from training.pretrained import read
from training.progress import reading
from training.published import is_published
from training.rehearsal import rehearse
from training.restore import newest, restore
from training.resume import continued
from training.run import Run, check_division
from training.showing import example
from training.signals import listening
from training.step import seed_step, update
from training.validation import judged


def prepare(config, home):
    """Everything a run needs before its first step; what can be wrong is said before any text is read."""
    check_name(config, home)
    check_parts(config)
    ranks, device = join(choose_device(config.device))
    hold_memory()
    check_division(config, ranks)
    precision = choose(device, config.precision)
    stored = newest(home / config.name, ranks, device) if config.resume else None
    with reading() as report:
        streams = load(config, report) if stored is None else reload(config, stored, report)
    model = start(config, streams.tokenizer.vocab_size, stored).to(device)
    optimizer = make_optimizer(config, model)
    return Run(config, ranks, precision, streams, model, optimizer, stored)


def start(config, vocab_size, stored):
    """The model before its first step here: drawn anew, or that of init_from."""
    if config.init_from is None or stored:
        return build_model(config.model, vocab_size, config.seed)
    if is_published(config.init_from):
        return read(config.init_from).model()
    return open_run(Path(config.init_from).expanduser()).model.train()


def train(run, asked, monitor):
    """The loop. Whatever changes a weight follows from (seed, step); the monitor only looks on."""
    config, ranks, device = run.config, run.ranks, run.precision.device
    asked, way, steps = ranks.wrap(asked), run.way, range(run.progress.step, run.steps)
    batches = prefetch(lambda step: run.streams.train.batch(step, *ranks), steps, pin=device.type == "cuda")
    for step, batch in zip(steps, batches, strict=False):
        show(run, monitor)
        asks = due(step, config.eval.every) or run.forgets(step)
        if asks and judge(run, monitor).out_of(config.train.patience):
            run.save()
            break
        seed_step(config.seed, step, ranks.rank)
        factor = run.schedule(step)
        with run.naming(step):
            learned = update(asked, batch.to(device), factor, way)
        done = run.advance(learned)
        monitor.step(done, learned, factor)
        if due(done, config.checkpoint.every):
            run.save()
        run.heed()
    else:
        show(run, monitor)
        if run.progress.step:
            run.save()
            judge(run, monitor)
    found = judged(run)
    monitor.evaluation(run.progress.step, found, full=True)
    return found


def due(step, every):
    return every is not None and step % every == 0


def show(run, monitor):
    """What the model says by now. As all that looks at a step, it comes again where a run goes on from it."""
    if run.progress.step and due(run.progress.step, run.config.show.every):
        monitor.example(run.progress.step, example(run))


def judge(run, monitor):
    """Part of validation, the same part each time. The best so far is kept."""
    found = judged(run, run.config.eval.windows)
    monitor.evaluation(run.progress.step, found, full=False)
    if found["val_loss"] < run.progress.best and run.progress.step:
        run.save(best=True)
    run.progress.judge(found["val_loss"])
    return run.progress


def asked_for(words):
    """The config of a command line; what cannot be is said before anything is read."""
    config = compose(words)
    check_parts(config)
    return config


def main(words, home):
    config = continued(words, home)
    try:
        with claimed(config, home):
            run = prepare(config, home)
            asked, cost = rehearse(run)
            run.settle(cost)
            if run.stored:
                restore(run)
            if run.ranks.first:
                print(plan(run, cost))
            if config.dry_run:
                return
            with listening(), run.begun(home), Monitor(run) if run.ranks.first else Silence() as monitor:
                found = train(run, asked, monitor)
            if run.ranks.first:
                print(ending(run, found))
    finally:
        leave()


if __name__ == "__main__":
    sys.exit(launch(main, asked_for, sys.argv[1:]))
