"""What a build starts from: raw folders and label tables, listed and read; and a folder of made-up photographs."""
