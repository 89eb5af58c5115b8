module fdl.dev/tests/probe

go 1.26.0
