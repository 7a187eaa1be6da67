"""Command lines that are refused: {what is typed: a telling part of the sentence}."""

NO_DOCUMENTS = "data.document_mask=true needs objective=next_token, not"
CONFIG = {
    "train.stepz=5": r"unknown setting train.stepz \(did you mean train.steps\?\)",
    "modle=llama": r"unknown setting modle \(did you mean model\?\)",
    "model.attention.queries_per_kv=2": "is a setting of attention=gqa or .*, which is not sel",
    # what other projects call them
    "lr=1": r"unknown setting lr \(did you mean optimizer.lr\?\)",
    "data.document_mask=true model=bert": NO_DOCUMENTS,
    "data.document_mask=true model=t5": NO_DOCUMENTS,
    "data.document_mask=true data=synthetic": NO_DOCUMENTS,
    "optimizer=muon_moden": r"unknown option optimizer=muon_moden \(did you mean muon_modern\?\)",
    "plan.gpu=4090": "add dry_run=true",
    "data=book.txt": "unknown option data=book.txt .*a file is read by data=text or data=table",
    "attention=gqa,mha": "attention=gqa,mha lists several values; -m runs one training for each",
    # words that are no settings
    "train.steps": "cannot parse 'train.steps'; write group=option or key=value",
    "config/train_gpt2.py": "settings are not read from a Python file such as config/train_gpt2",
    "--lr=3": "unknown option --lr=3; a setting has no dashes: lr=3",
    "wandb=offline": "wandb is 'offline'; expected its settings one by one: wandb.mode, wan",
    "train.steps=1.5": "train.steps is 1.5; expected an integer at least 0 or null",
    "train.steps=null": "a run needs a length: set one of train.steps, train.tokens, tra",
    "parallel=fsdp": "parallel=fsdp needs several processes; use torchrun",
    "name=../x": "name is '../x'; use up to 120 letters",
    "resume=true": "resume= needs a name=...; runs has no run yet",
    "data.path=~no-such-user/x": "cannot expand ~ in ~no-such-user",
    "-m name=x seed=1,2": "-m cannot be combined with name= or resume=: each run gets a new",
    # what a part refuses
    "schedule.warmup=9": "warmup is 9 steps but the run has only 4; lower warmup",
    "schedule.warmup=9 train.minutes=1": "warmup is 9 steps, but train.minutes has no steps",
    "model.n_layers=999999999": "n_layers is 999999999; expected an integer at least 1 and at",
}
MIX = "data=mix data.sources="
CONFIG |= {
    "data.path=": "data.path is empty; give a file, a folder or a glob",
    "data.encoding=utf-9": "encoding is 'utf-9', not a text encoding of Python; try utf-8",
    "data=table": "a value is needed for data.path",
    MIX + "{a:{kind:python},b:{kind:synthetic}}": "the sources must be all text, all",
    MIX + "{a:{kind:mix,sources:{b:{kind:python}}}}": "data.sources.a.kind is 'mix'; choose one",
    MIX + "{a:{kind:python,document_mask:true}}": r"setting data.sources.a \(python\): document_",
    MIX + "{a:{kind:python,weight:0}}": "data.sources.a.weight is 0; expected a number above",
    MIX + "{a:python}": "data.sources.a is 'python'; expected a group of settings",
}
TABLE = "data=table data.field=text data.path="
PAIRS = "model=bart data=pairs data.path=gap.tsv"
DATA = {
    "data.path=none.txt": "there is no file at none.txt",
    "data.path=zero.txt": "the files are empty",
    "data.path=latin.txt": "is not UTF-8 .invalid continuation byte",
    "data.path=tiny.txt": "train has 2 tokens, too few for an example; give more text",
    TABLE + "bad.jsonl": "bad.jsonl:2: not JSON",
    "data.path=tiny.txt data.val_path=zero.txt": "validation split is empty; change data.val_",
    "data.path=zero.txt data.on_error=skip": "there is no text: zero.txt: the text is empty",
    "data.path=no.txt.gz": "cannot read no.txt.gz: ",
    "data.path=latin.txt data.split_on=line": "latin.txt:1 has bytes that are not text; set",
    PAIRS: "gap.tsv:3: the source or the target",
}
BAD = [(typed, 2, part) for typed, part in CONFIG.items()]
BAD += [(typed, 3, part) for typed, part in DATA.items()]
