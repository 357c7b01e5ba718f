from benchmarks.algorithms.run import main

main()
