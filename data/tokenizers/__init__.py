from data.tokenizers import imported as imported
