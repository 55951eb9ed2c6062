# One line for each ratio of peers.json: day, commit, machine, measure, what is divided by what, ratio.
[.written[:10], .commit[:12], "\(.machine.cpu), Linux \(.machine.kernel)"] as $run
| .ratios[] | .head as $head
| .rows[] | . as $row
| range(1; length) | $run + [$row[0], $head[.], $row[.]]
| @tsv
