module plugwright/bench/rule

go 1.26.0
