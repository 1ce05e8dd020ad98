// Command client plays the kubelet for one device plugin and times it.
//
// It prints one JSON object per line: listening, registered, list, allocate, restarts, holding; or error, with exit
// status 1. Times are microseconds unless the name says otherwise. It ends at the end of its input while holding.
package main

import (
	"encoding/json"
	"flag"
	"io"
	"os"
	"time"
)

type settings struct {
	dir, resource           string
	calls, warmup, restarts int
	registrations           int
	timeout, downtime       time.Duration
	budget, hold            time.Duration
}

func parse() settings {
	var s settings
	flag.StringVar(&s.dir, "dir", "", "the device-plugins directory (required)")
	flag.StringVar(&s.resource, "resource", "", "the resource to measure; empty: the first that registers")
	flag.IntVar(&s.calls, "calls", 0, "Allocate calls to time, one after the other")
	flag.IntVar(&s.warmup, "warmup", 50, "Allocate calls made before those")
	flag.IntVar(&s.registrations, "registrations", 1, "wait for so many registrations; the last one is measured")
	flag.IntVar(&s.restarts, "restarts", 0, "kubelet restarts to time")
	flag.DurationVar(&s.downtime, "downtime", 100*time.Millisecond, "how long the kubelet is away in a restart")
	flag.DurationVar(&s.budget, "budget", 0, "begin no further restart after this long; 0: no limit")
	flag.DurationVar(&s.hold, "hold", 0, "keep the stream open for this long at the end")
	flag.DurationVar(&s.timeout, "timeout", 30*time.Second, "limit of each single wait")
	flag.Parse()
	return s
}

type event map[string]any

func emit(name string, facts event) {
	line := event{"event": name}
	for key, value := range facts {
		line[key] = value
	}
	_ = json.NewEncoder(os.Stdout).Encode(line)
}

func main() {
	s := parse()
	if s.dir == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := measure(s); err != nil {
		emit("error", event{"message": err.Error()})
		os.Exit(1)
	}
}

func measure(s settings) error {
	k, err := startKubelet(s)
	if err != nil {
		return err
	}
	defer func() { k.stop() }()
	emit("listening", event{"at_ns": monotonic()})
	var p *plugin
	for range max(1, s.registrations) {
		if p, err = k.await(); err != nil {
			return err
		}
	}
	emit("registered", event{
		"us": micros(p.registered.Sub(k.created)), "at_ns": p.registeredNs,
		"resource": p.resource, "endpoint": p.endpoint, "options": p.options,
	})
	list, err := p.list(s.timeout)
	if err != nil {
		return err
	}
	emit("list", event{
		"us": micros(list.took), "devices": list.devices, "healthy": len(list.healthy), "bytes": list.bytes,
	})
	if err := timeAllocate(s, p, list.healthy); err != nil {
		return err
	}
	if k, p, err = timeRestarts(s, k, p); err != nil {
		return err
	}
	return hold(s.hold, p)
}

// hold keeps the stream open until the time is over, the input ends, or the plugin ends the stream: only that is an error.
func hold(limit time.Duration, p *plugin) error {
	if limit == 0 {
		return nil
	}
	emit("holding", nil)
	input := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(input) }()
	select {
	case <-time.After(limit):
	case <-input:
	case err := <-p.ended:
		return err
	}
	return nil
}
