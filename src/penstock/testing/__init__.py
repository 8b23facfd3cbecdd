"""The kit for tests of Penstock and of programs that use it: clocks, disks, peers, checkers."""
