package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func timeAllocate(s settings, p *plugin, ids []string) error {
	if s.calls == 0 {
		return nil
	}
	if len(ids) == 0 {
		return errors.New("the plugin lists no healthy device to allocate")
	}
	times := make([]float64, 0, s.calls)
	for n := range s.warmup + s.calls {
		took, err := allocate(s, p, ids[n%len(ids)])
		if err != nil {
			return fmt.Errorf("Allocate, call %d: %w", n+1, err)
		}
		if n >= s.warmup {
			times = append(times, micros(took))
		}
	}
	emit("allocate", summary(times))
	return nil
}

func allocate(s settings, p *plugin, id string) (time.Duration, error) {
	request := &api.AllocateRequest{
		ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{id}}},
	}
	ctx, cancel := context.WithTimeout(p.ctx, s.timeout)
	defer cancel()
	began := time.Now()
	answer, err := p.client.Allocate(ctx, request)
	took := time.Since(began)
	if err == nil && len(answer.ContainerResponses) != 1 {
		err = fmt.Errorf("%d container responses for one container", len(answer.ContainerResponses))
	}
	return took, err
}

// timeRestarts ends the kubelet and starts the next one, again and again; the last one is handed back alive.
func timeRestarts(s settings, k *kubelet, p *plugin) (*kubelet, *plugin, error) {
	if s.restarts == 0 {
		return k, p, nil
	}
	began, times := time.Now(), []float64{}
	for len(times) < s.restarts && (s.budget == 0 || time.Since(began) < s.budget) {
		next, err := restart(s, k, p)
		if err != nil {
			return k, p, fmt.Errorf("restart %d: %w", len(times)+1, err)
		}
		k = next
		if p, err = k.await(); err == nil {
			_, err = p.list(s.timeout)
		}
		if err != nil {
			return k, p, fmt.Errorf("restart %d: %w", len(times)+1, err)
		}
		times = append(times, micros(p.registered.Sub(k.created)))
	}
	facts := summary(times)
	facts["all"] = times
	emit("restarts", facts)
	return k, p, nil
}

func restart(s settings, k *kubelet, p *plugin) (*kubelet, error) {
	k.stop()
	_ = p.connection.Close()
	time.Sleep(s.downtime)
	return startKubelet(s)
}

// summary sorts a copy; percentiles are by nearest rank, so each is a value that was measured.
func summary(times []float64) event {
	sorted := slices.Sorted(slices.Values(times))
	total := 0.0
	for _, value := range sorted {
		total += value
	}
	rank := func(share float64) float64 {
		return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
	}
	return event{
		"count": len(sorted), "mean": math.Round(total/float64(len(sorted))*1000) / 1000,
		"p50": rank(0.50), "p90": rank(0.90), "p99": rank(0.99), "max": sorted[len(sorted)-1],
	}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
