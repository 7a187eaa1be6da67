"""`python -m training.evaluate --tasks` gives what the `hf` model of the harness gives for the export."""

import json
import re
from pathlib import Path

import pytest

from model.hub.__main__ import export_run
from model.pretrained import load_pretrained
from tests.data.corpora import write_rows
from tests.parts import thin
from training.evaluate import main

lm_eval = pytest.importorskip("lm_eval", reason="pip install -e '.[eval]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries
TASKS = {
    "choice": """
doc_to_text: "{{text[9:]}}"
output_type: multiple_choice
doc_to_choice: [" of a text", "!", " a"]
doc_to_target: 0
metric_list: [{metric: acc}]
""",
    "rolling": """
doc_to_text: ""
output_type: loglikelihood_rolling
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}]
""",
}
USUAL = """
dataset_path: json
dataset_kwargs: {data_files: {test: texts.jsonl}}
test_split: test
"""


@pytest.fixture
def tasks(room):
    """Some contexts are empty, or longer than that of the model."""
    write_rows("texts.jsonl", [{"text": n * f"line {n} "} for n in range(1, 9)])
    for name, lines in TASKS.items():
        Path(f"{name}.yaml").write_text(f"task: {name}{USUAL}{lines}")
    return [f"{name}.yaml" for name in TASKS]


def read_found():
    [path] = Path().glob("found_*.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize("model", thin(["gpt2", "llama", "gemma3", "modern"], ["llama"]))
def test_harness(model, run, tasks, capsys):
    from training.harness import Harness

    folder = run(f"model={model}", "model.bigrams=null")
    export_run(folder, "latest", Path("out"), None)
    theirs = lm_eval.simple_evaluate("hf", model_args="pretrained=out,device=cpu", tasks=tasks)
    Harness.run = load_pretrained(str(folder))
    ours = lm_eval.simple_evaluate(Harness(batch_size=4), tasks=tasks)
    main(["--tasks", ",".join(tasks), "--output_path", "found.json"])
    assert "|±  |" in capsys.readouterr().out
    written = read_found()["results"]
    for name in TASKS:
        for one, other in zip(ours["samples"][name], theirs["samples"][name], strict=True):
            for [found], [expected] in zip(one["resps"], other["resps"], strict=True):
                assert found == pytest.approx(expected, abs=1e-4)
        assert written[name] == pytest.approx(theirs["results"][name], abs=1e-4)


def test_a_conversation_has_the_template_of_the_export(run):
    """Special tokens in a text are parsed, as there."""
    rows = [{"prompt": f"say {n}", "completion": f"it is {n}"} for n in range(20)]
    write_rows("chats.jsonl", rows)
    write_rows("texts.jsonl", [{"text": "say 5<|end|>it is 5"}])
    folder = run("model=llama", "data=chat", "data.path=chats.jsonl", "model.context_length=64")
    export_run(folder, "latest", Path("out"), None)
    Path("rolling.yaml").write_text(f"task: rolling{USUAL}{TASKS['rolling']}")
    theirs = lm_eval.simple_evaluate(
        "hf", model_args="pretrained=out,device=cpu", tasks=["rolling.yaml"]
    )
    main(["--tasks=rolling.yaml", "--output_path", "found.json"])
    written = read_found()
    assert written["results"]["rolling"] == pytest.approx(theirs["results"]["rolling"], abs=1e-4)
    assert written["model_name"] == str(folder)


GENERATION = f"""
task: answers{USUAL}
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "of"
"""
BAD = {
    "answers.yaml": "a task that generates text is not supported by --tasks: export the run",
    "choice.yaml --run runs/bert": "--tasks needs a decoder; model.kind is encoder",
    "choice.yaml --run runs/gpt": "there is no folder runs/gpt",
    "blimp_adjunct_island": "Couldn't reach 'nyu-mll/blimp'",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input(arguments, run, tasks, monkeypatch):
    for module in ("huggingface_hub.constants", "datasets.config"):
        monkeypatch.setattr(f"{module}.HF_HUB_OFFLINE", True)
    Path("answers.yaml").write_text(GENERATION)
    run("model=bert", "name=bert")
    run("model=gpt2")
    with pytest.raises(Exception, match=re.escape(BAD[arguments])):
        main(["--tasks", *arguments.split()])
