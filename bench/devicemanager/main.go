// Command devicemanager runs the real kubelet's own device manager until its devices are all given out, and prints
// how many pods of one device each it served in a second: what the emulated one is measured beside.
//
// Its directory is a constant, /var/lib/kubelet/device-plugins, so it has to be started in a mount namespace that has
// another one there. A plugin must register by itself.
package main

import (
	"flag"
	"fmt"
	"log"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
)

const patience = time.Minute

// ready says that every source of pods has been seen.
type ready struct{}

func (ready) AddSource(string) {}
func (ready) AllReady() bool   { return true }

func main() {
	count := flag.Int("count", 100, "how many devices the plugin has")
	name := flag.String("resource", "example.com/yardstick", "what it calls them")
	flag.Parse()
	pods := []*v1.Pod{}
	manager, err := devicemanager.NewManagerImpl(nil, topologymanager.NewFakeManager())
	if err != nil {
		log.Fatal(err)
	}
	active := func() []*v1.Pod { return pods }
	if err := manager.Start(klog.TODO(), active, ready{}, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening")
	await(manager, v1.ResourceName(*name), *count)
	fmt.Printf("rate %f\n", fill(manager, &pods, v1.ResourceName(*name), *count))
}

func await(manager *devicemanager.ManagerImpl, name v1.ResourceName, count int) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		_, allocatable, _ := manager.GetCapacity()
		if found, known := allocatable[name]; known && int(found.Value()) == count {
			return
		}
	}
	log.Fatalf("no plugin listed %d devices within %s", count, patience)
}

func fill(manager *devicemanager.ManagerImpl, pods *[]*v1.Pod, name v1.ResourceName, count int) float64 {
	began := time.Now()
	for number := range count {
		pod := pod(number, name)
		*pods = append(*pods, pod)
		if err := manager.Allocate(pod, &pod.Spec.Containers[0]); err != nil {
			log.Fatal(err)
		}
	}
	return float64(count) / time.Since(began).Seconds()
}

func pod(number int, name v1.ResourceName) *v1.Pod {
	one := v1.ResourceList{name: resource.MustParse("1")}
	container := v1.Container{Name: "main", Resources: v1.ResourceRequirements{Limits: one, Requests: one}}
	uid := types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", number, number))
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", number), Namespace: "default", UID: uid},
		Spec:       v1.PodSpec{Containers: []v1.Container{container}},
	}
}
