// cel_oracle answers selectors as Kubernetes does: one JSON case per line in, one JSON answer per line out.
//
// A case has an expression, whether it is stored (as kube-scheduler compiles it) or new (as kube-apiserver does at
// creation), and devices. The answer has the compile error or the estimated cost, and for every device the value with
// its actual cost, or the error.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

type device struct {
	Driver        string                                                    `json:"driver"`
	AllowMultiple *bool                                                     `json:"allowMultipleAllocations"`
	Attributes    map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
	Capacity      map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity"`
}

type question struct {
	Expression string   `json:"expression"`
	Stored     bool     `json:"stored"`
	Devices    []device `json:"devices"`
}

type outcome struct {
	Value *bool  `json:"value,omitempty"`
	Cost  uint64 `json:"cost,omitempty"`
	Error string `json:"error,omitempty"`
}

type answer struct {
	Error   string    `json:"error,omitempty"`
	Cost    uint64    `json:"cost"`
	Results []outcome `json:"results,omitempty"`
}

func ask(q question) (a answer) {
	kind := environment.NewExpressions
	if q.Stored {
		kind = environment.StoredExpressions
	}
	compiler := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true})
	compiled := compiler.CompileCELExpression(q.Expression, dracel.Options{EnvType: &kind})
	if compiled.Error != nil {
		a.Error = compiled.Error.Detail
		return a
	}
	a.Cost = compiled.MaxCost
	for _, d := range q.Devices {
		a.Results = append(a.Results, match(compiled, d))
	}
	return a
}

func match(compiled dracel.CompilationResult, d device) (o outcome) {
	defer func() {
		if r := recover(); r != nil {
			o = outcome{Error: fmt.Sprintf("panic: %v", r)}
		}
	}()
	value, details, err := compiled.DeviceMatches(context.Background(), dracel.Device{
		Driver: d.Driver, AllowMultipleAllocations: d.AllowMultiple, Attributes: d.Attributes, Capacity: d.Capacity})
	if details != nil && details.ActualCost() != nil {
		o.Cost = *details.ActualCost()
	}
	if err != nil {
		o.Error = err.Error()
	} else {
		o.Value = &value
	}
	return o
}

func main() {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	decoder := json.NewDecoder(lines)
	for decoder.More() {
		var q question
		if err := decoder.Decode(&q); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := encoder.Encode(ask(q)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
