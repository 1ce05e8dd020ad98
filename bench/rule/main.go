// Command rule chooses GPUs by the rule of NVIDIA's device plugin, written anew from its description: cut everything
// free into groups of the size asked for, in every possible way; of the cut with the highest score take the best group.
// It is what the benchmark of preferred allocation measures ours beside. It reads a matrix of scores as JSON from
// stdin. Unlike the plugin it asks no driver and allocates nothing per cut, so it is faster than the plugin.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"
)

type search struct {
	scores [][]int
	size   int
	short  int // GPUs in the one group that is not full, 0 for none
	groups [][]int
	cuts   int
	best   int
	chosen []int
}

// cut puts the first GPU that has no group yet into every group that it can be in, and goes on from there.
func (s *search) cut(used uint64, shortMade bool) {
	first := 0
	for first < len(s.scores) && used>>first&1 == 1 {
		first++
	}
	if first == len(s.scores) {
		s.weigh()
		return
	}
	left := 0
	for gpu := range s.scores {
		if used>>gpu&1 == 0 {
			left++
		}
	}
	if left >= s.size {
		s.extend(append(s.next(), first), used|1<<first, s.size, shortMade)
	}
	if s.short > 0 && !shortMade {
		s.extend(append(s.next(), first), used|1<<first, s.short, true)
	}
}

// next is an empty group that uses again the memory of the one that was last in its place.
func (s *search) next() []int {
	if len(s.groups) < cap(s.groups) {
		if old := s.groups[:len(s.groups)+1][len(s.groups)]; old != nil {
			return old[:0]
		}
	}
	return make([]int, 0, s.size)
}

func (s *search) extend(group []int, used uint64, size int, shortMade bool) {
	if len(group) == size {
		s.groups = append(s.groups, group)
		s.cut(used, shortMade)
		s.groups = s.groups[:len(s.groups)-1]
		return
	}
	for gpu := group[len(group)-1] + 1; gpu < len(s.scores); gpu++ {
		if used>>gpu&1 == 0 {
			s.extend(append(group, gpu), used|1<<gpu, size, shortMade)
		}
	}
}

func (s *search) weigh() {
	s.cuts++
	total := 0
	for _, group := range s.groups {
		total += s.together(group)
	}
	if total <= s.best {
		return
	}
	s.best = total
	highest := -1
	for _, group := range s.groups {
		if score := s.together(group); len(group) == s.size && score > highest {
			highest = score
			s.chosen = append(s.chosen[:0], group...)
		}
	}
}

func (s *search) together(group []int) int {
	total := 0
	for place, one := range group {
		for _, other := range group[place+1:] {
			total += s.scores[one][other]
		}
	}
	return total
}

func main() {
	size := flag.Int("size", 2, "how many GPUs are asked for")
	repeats := flag.Int("repeats", 5, "how often to choose")
	seconds := flag.Float64("seconds", 1, "no further repeat after this time")
	flag.Parse()
	var scores [][]int
	if err := json.NewDecoder(os.Stdin).Decode(&scores); err != nil {
		fmt.Fprintln(os.Stderr, "rule:", err)
		os.Exit(1)
	}
	var times []float64
	var found *search
	for began := time.Now(); len(times) == 0 || len(times) < *repeats && time.Since(began).Seconds() < *seconds; {
		start := time.Now()
		found = &search{scores: scores, size: *size, short: len(scores) % *size, best: -1}
		found.groups = make([][]int, 0, len(scores))
		found.cut(0, false)
		times = append(times, float64(time.Since(start).Nanoseconds())/1000)
	}
	answer := map[string]any{"microseconds": times, "cuts": found.cuts, "best": found.best, "chosen": found.chosen}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		os.Exit(1)
	}
}
