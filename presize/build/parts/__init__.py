"""A build by parts: any number of machines with one file system build a share of the shards each; one publishes."""
