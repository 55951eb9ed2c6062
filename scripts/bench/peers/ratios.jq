# One line for each ratio of peers.json: day, commit, machine, table, measure, what Ferry is divided by, ratio.
[.written[:10], .commit[:12], "\(.machine.cpu), Linux \(.machine.kernel)"] as $run
| .ratios[] | .title as $title | .head as $head
| .rows[] | . as $row
| range(1; length) | $run + [$title, $row[0], $head[.], $row[.]]
| @tsv
