from data.tokenizers import imported as imported
from data.tokenizers import plain as plain
