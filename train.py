"""The story of a run: config -> data -> model -> loop -> checkpoint.

python train.py model=llama data=text data.path=book.txt
"""

import sys

from configs.compose import compose
from data.corpus import load, tokenizing_progress
from data.loader import prefetch
from model import build_model
from model.hub.convert import init_config, init_model
from model.precision import choose_device, choose_precision, tune_malloc
from training.distributed import catching_signals, init_distributed, shut_down
from training.evaluate import evaluate_run, sample_validation
from training.monitor import Monitor, NullMonitor
from training.optimizer import make_optimizer
from training.plan import check_parts, plan, profile_step
from training.resume import latest_whole, reload_data, resolve_config, restore
from training.run import Run, check_division
from training.run_folder import check_name, lock_if_resuming
from training.step import seed_step, update
from training.summary import summarize
from training.sweep import launch


def prepare(config, overrides, home):
    """Everything a run needs before its first step; what can be wrong is said before any text is read."""
    check_name(config.name, home, config.resume)
    check_parts(config)
    dist, device = init_distributed(choose_device(config.device))
    tune_malloc()
    check_division(config, dist)
    precision = choose_precision(device, config.precision)
    stored = latest_whole(home / config.name, dist, device) if config.resume else None
    model, tokenizer = init_model(config.init_from) if config.init_from and not stored else (None, None)
    with tokenizing_progress() as report:
        loaders = reload_data(config, stored, report) if stored else load(config, tokenizer, report)
    model = model or build_model(config.model, loaders.tokenizer.vocab_size, config.seed)
    model = model.to(device)
    optimizer = make_optimizer(config, model)
    return Run(config, overrides, dist, precision, loaders, model, optimizer, stored)


def train(run, asked, monitor):
    """The loop. Whatever changes a weight follows from (seed, step); the monitor only looks on."""
    config, dist, device = run.config, run.dist, run.precision.device
    asked, way, steps = dist.wrap(asked), run.way, range(run.state.step, run.steps)
    batches = prefetch(lambda step: run.loaders.train.batch(step, *dist), steps, pin=device.type == "cuda")
    for step, batch in zip(steps, batches, strict=False):
        show(run, monitor)
        asks = due(step, config.eval.every) or run.forgets(step)
        if asks and judge(run, monitor).out_of(config.train.patience):
            run.save()
            break
        seed_step(config.seed, step, dist.rank)
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
        if run.state.step:
            run.save()
            judge(run, monitor)
    found = evaluate_run(run)
    monitor.evaluation(run.state.step, found, full=True)
    return found


def due(step, every):
    return every is not None and step % every == 0


def show(run, monitor):
    """What the model says by now. As all that looks at a step, it comes again where a run goes on from it."""
    if run.state.step and due(run.state.step, run.config.sample.every):
        monitor.example(run.state.step, sample_validation(run))


def judge(run, monitor):
    """Part of validation, the same part each time. The best so far is kept."""
    found = evaluate_run(run, run.config.eval.max_examples)
    monitor.evaluation(run.state.step, found, full=False)
    if found["val_loss"] < run.state.best_val_loss and run.state.step:
        run.save(best=True)
    run.state.judge(found["val_loss"])
    return run.state


def asked_for(words):
    """The config of a command line; what cannot be is said before anything is read."""
    config = compose(words, init_config)
    check_parts(config)
    return config


def main(words, home):
    config, overrides = resolve_config(words, home, init_config)
    try:
        with lock_if_resuming(config, home):
            run = prepare(config, overrides, home)
            asked, cost = profile_step(run)
            run.settle(cost)
            if run.stored:
                restore(run)
            if run.dist.is_main:
                print(plan(run, cost))
            if config.dry_run:
                return
            with (
                catching_signals(),
                run.begun(home),
                Monitor(run) if run.dist.is_main else NullMonitor() as monitor,
            ):
                found = train(run, asked, monitor)
            if run.dist.is_main:
                print(summarize(run, found))
    finally:
        shut_down()


if __name__ == "__main__":
    sys.exit(launch(main, asked_for, sys.argv[1:]))
