// Answers the questions of python -m plugwright.allocator with the scheduler's own allocator: one JSON object per line.
//
// Without an argument it answers each question as it is. With -nodes it asks the question for every node of `nodes`
// until one fits, repeats that -repeat times, and prints the milliseconds of each round.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type question struct {
	Features          []string                                `json:"features"`
	Node              *corev1.Node                            `json:"node"`
	Nodes             []*corev1.Node                          `json:"nodes"`
	Classes           []*resourceapi.DeviceClass              `json:"classes"`
	Slices            []*resourceapi.ResourceSlice            `json:"slices"`
	Claims            []*resourceapi.ResourceClaim            `json:"claims"`
	Allocated         []string                                `json:"allocated"`
	AllocatedShared   []string                                `json:"allocatedShared"`
	AllocatedCapacity map[string]map[string]resource.Quantity `json:"allocatedCapacity"`
}

type answer struct {
	Results []resourceapi.AllocationResult `json:"results"`
	Error   string                         `json:"error,omitempty"`
	OnNode  bool                           `json:"onNode,omitempty"` // the error concerns this node alone
	Millis  []float64                      `json:"millis,omitempty"`
}

// The names of features that differ from the fields of structured.Features.
var fields = map[string]string{"DRADeviceBindingConditions+DRAResourceClaimDeviceStatus": "DeviceBindingAndStatus"}

type classLister []*resourceapi.DeviceClass

func (l classLister) List() ([]*resourceapi.DeviceClass, error) { return l, nil }

func (l classLister) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range l {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("deviceclass.resource.k8s.io %q not found", name)
}

func features(names []string) (structured.Features, error) {
	var enabled structured.Features
	for _, name := range names {
		field, renamed := fields[name]
		if !renamed {
			field = strings.TrimPrefix(name, "DRA")
		}
		value := reflect.ValueOf(&enabled).Elem().FieldByName(field)
		if !value.IsValid() {
			return enabled, fmt.Errorf("unknown feature %s", name)
		}
		value.SetBool(true)
	}
	return enabled, nil
}

// A driver and a device have no slash in their names, a pool may.
func deviceID(text string) structured.DeviceID {
	driver, rest, _ := strings.Cut(text, "/")
	at := strings.LastIndex(rest, "/")
	return structured.MakeDeviceID(driver, rest[:at], rest[at+1:])
}

func state(q question) structured.AllocatedState {
	s := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, id := range q.Allocated {
		s.AllocatedDevices.Insert(deviceID(id))
	}
	for _, id := range q.AllocatedShared {
		at := strings.LastIndex(id, "/")
		share := types.UID(id[at+1:])
		s.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(deviceID(id[:at]), &share))
	}
	for id, amounts := range q.AllocatedCapacity {
		consumed := map[resourceapi.QualifiedName]resource.Quantity{}
		for name, amount := range amounts {
			consumed[resourceapi.QualifiedName(name)] = amount
		}
		s.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(deviceID(id), consumed))
	}
	return s
}

func allocator(ctx context.Context, q question) (structured.Allocator, error) {
	enabled, err := features(q.Features)
	if err != nil {
		return nil, err
	}
	cache := cel.NewCache(10, cel.Features{EnableConsumableCapacity: enabled.ConsumableCapacity})
	return structured.NewAllocator(ctx, enabled, state(q), classLister(q.Classes), q.Slices, cache)
}

func answered(ctx context.Context, q question) answer {
	a, err := allocator(ctx, q)
	if err != nil {
		return answer{Error: err.Error()}
	}
	results, err := a.Allocate(ctx, q.Node, q.Claims)
	if err != nil {
		return answer{Error: err.Error(), OnNode: errors.Is(err, structured.ErrFailedAllocationOnNode)}
	}
	return answer{Results: results}
}

// firstFit asks node by node, as a scheduler does for one pod.
func firstFit(ctx context.Context, q question) answer {
	a, err := allocator(ctx, q)
	if err != nil {
		return answer{Error: err.Error()}
	}
	for _, node := range q.Nodes {
		results, err := a.Allocate(ctx, node, q.Claims)
		if err != nil {
			return answer{Error: err.Error()}
		}
		if results != nil {
			return answer{Results: results}
		}
	}
	return answer{}
}

func timed(ctx context.Context, q question, rounds int) answer {
	var last answer
	var millis []float64
	for range rounds {
		begin := time.Now()
		last = firstFit(ctx, q)
		millis = append(millis, float64(time.Since(begin).Microseconds())/1000)
	}
	last.Millis = millis
	return last
}

func main() {
	overNodes := flag.Bool("nodes", false, "ask for every node until one fits")
	rounds := flag.Int("repeat", 1, "how often, with -nodes")
	flag.Parse()
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) == 0 {
			return
		}
		var q question
		if failure := json.Unmarshal(line, &q); failure != nil {
			log.Fatal(failure)
		}
		var reply answer
		if *overNodes {
			reply = timed(context.Background(), q, *rounds)
		} else {
			reply = answered(context.Background(), q)
		}
		if failure := out.Encode(reply); failure != nil {
			log.Fatal(failure)
		}
		if err != nil {
			return
		}
	}
}
