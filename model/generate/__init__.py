from model.generate.decode import generate as generate
