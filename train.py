"""The story of a run: config -> data -> model -> loop -> checkpoint.

python train.py model=llama data=text data.path=book.txt
"""

import sys

from data.prefetch import prefetch
from model import build_model
from model.build import build
from training.command import command
from training.config import compose
from training.corpus import load
from training.distributed import join, leave
from training.monitor import Monitor, Silence
from training.optimizer import OPTIMIZERS
from training.precision import choose, choose_device
from training.progress import reading
from training.run import Run
from training.schedule import SCHEDULES
from training.showing import exact, example
from training.step import Asked, evaluate, seed_step, update


def prepare(config):
    """Everything a run needs before its first step."""
    ranks, device = join(choose_device(config.device))
    precision = choose(device, config.precision)
    with reading() as report:
        streams = load(config, report)
    model = build_model(config.model, streams.tokenizer.vocab_size, config.seed).to(device)
    optimizer = build("optimizer", OPTIMIZERS, config.optimizer, {}).make(model)
    schedule = build("schedule", SCHEDULES, config.schedule, {"steps": config.train.steps})
    return Run(config, ranks, precision, streams, model, optimizer, schedule)


def train(run, monitor):
    """The loop. Whatever changes a weight follows from (seed, step); the monitor only looks on."""
    config, ranks, device = run.config, run.ranks, run.precision.device
    asked = ranks.wrap(Asked(run.model))
    scaler = run.precision.scaler()
    steps = range(config.train.steps)
    batches = prefetch(lambda step: run.streams.train.batch(step, *ranks), steps, pin=device.type == "cuda")
    for step, batch in zip(steps, batches, strict=True):
        if step % config.eval.every == 0:
            judge(run, monitor, step)
        seed_step(config.seed, step, ranks.rank)
        factor = run.schedule(step)
        learned = update(
            asked,
            batch.to(device),
            optimizer=run.optimizer,
            scaler=scaler,
            factor=factor,
            micro_batch=run.micro_batch,
            clip=config.train.grad_clip,
            precision=run.precision,
            ranks=ranks,
        )
        done = step + 1
        monitor.step(done, learned, factor)
        if done % config.show.every == 0:
            monitor.example(done, example(run))
        if done % config.checkpoint.every == 0 or done == config.train.steps:
            run.save(done)
    judge(run, monitor, config.train.steps, full=True)


def judge(run, monitor, step, full=False):
    """The loss of validation, the same windows each time, all of them at the end."""
    limit = None if full else run.config.eval.windows
    batches = run.streams.validation.evaluation(limit, *run.ranks)
    found = evaluate(Asked(run.model), batches, run.precision, run.ranks)
    monitor.evaluation(step, *found, full)
    if run.config.objective["kind"] == "pairs":
        monitor.exact(step, exact(run, limit))


def main(words):
    config = compose(words)
    try:
        run = prepare(config)
        if run.ranks.first:
            run.begin()
            print(run.plan())
        with Monitor(run) if run.ranks.first else Silence() as monitor:
            train(run, monitor)
    finally:
        leave()


if __name__ == "__main__":
    sys.exit(command(main, sys.argv[1:]))
