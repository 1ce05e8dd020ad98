// A client of the Kubernetes API with client-go as it comes: typed, dynamic, informers, leader election, events, apply.
//
// It prints a line for everything that went well, and ends at the first error.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const namespace = "default"

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := kubernetes.NewForConfigOrDie(config)
	informed(ctx, client)
	typed(ctx, client)
	applied(ctx, client)
	unstructuredAndMetadata(ctx, config)
	elected(ctx, client)
	written(ctx, client)
	recorded(ctx, client)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func informed(ctx context.Context, client kubernetes.Interface) {
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	added := make(chan string, 8)
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		added <- object.(*corev1.Pod).Name
	}})
	must(err)
	nodes := factory.Core().V1().Nodes()
	nodes.Informer()
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced, nodes.Informer().HasSynced) {
		must(fmt.Errorf("the informers do not sync"))
	}
	_, err = client.CoreV1().Pods(namespace).Create(ctx, pod("informed"), metav1.CreateOptions{})
	must(err)
	fmt.Println("informer saw", <-added)
}

func pod(name string) *corev1.Pod {
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	container := corev1.Container{Name: "main", Image: "busybox", Resources: corev1.ResourceRequirements{Limits: limits}}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{container}, SchedulerName: "nobody", // so that it stays as it is
	}}
}

func typed(ctx context.Context, client kubernetes.Interface) {
	pods := client.CoreV1().Pods(namespace)
	created, err := pods.Create(ctx, pod("typed"), metav1.CreateOptions{})
	must(err)
	created.Labels = map[string]string{"a": "b"}
	updated, err := pods.Update(ctx, created, metav1.UpdateOptions{})
	must(err)
	updated.Status.Message = "hello"
	_, err = pods.UpdateStatus(ctx, updated, metav1.UpdateOptions{})
	must(err)
	must(client.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "typed", Namespace: namespace}}))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "typed"}, StringData: map[string]string{"k": "v"}}
	stored, err := client.CoreV1().Secrets(namespace).Create(ctx, secret, metav1.CreateOptions{})
	must(err)
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(err)
	node := &nodes.Items[0]
	node.Status.Capacity["example.com/go"] = resource.MustParse("3")
	node, err = client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	must(err)
	capacity := node.Status.Capacity["example.com/go"]
	fmt.Println("typed stored", string(stored.Data["k"]), "and a node with", capacity.String())
}

func applied(ctx context.Context, client kubernetes.Interface) {
	maps := client.CoreV1().ConfigMaps(namespace)
	options := metav1.ApplyOptions{FieldManager: "go"}
	_, err := maps.Apply(ctx, applycorev1.ConfigMap("applied", namespace).WithData(map[string]string{"a": "1", "b": "2"}), options)
	must(err)
	again, err := maps.Apply(ctx, applycorev1.ConfigMap("applied", namespace).WithData(map[string]string{"b": "3"}), options)
	must(err)
	fmt.Println("applied", again.Data)
}

func unstructuredAndMetadata(ctx context.Context, config *rest.Config) {
	maps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	client := dynamic.NewForConfigOrDie(config).Resource(maps).Namespace(namespace)
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "dynamic"}, "data": map[string]any{"a": "b"},
	}}
	_, err := client.Create(ctx, object, metav1.CreateOptions{})
	must(err)
	patched, err := client.Patch(ctx, "dynamic", types.MergePatchType, []byte(`{"data":{"c":"d"}}`), metav1.PatchOptions{})
	must(err)
	data, _, _ := unstructured.NestedStringMap(patched.Object, "data")
	partial, err := metadata.NewForConfigOrDie(config).Resource(maps).Namespace(namespace).List(ctx, metav1.ListOptions{})
	must(err)
	fmt.Println("dynamic", data, "and", len(partial.Items), "of metadata")
}

func elected(ctx context.Context, client kubernetes.Interface) {
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, namespace, "leader", client.CoreV1(), client.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: "me"})
	must(err)
	ctx, cancel := context.WithCancel(ctx)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 4 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 100 * time.Millisecond,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { fmt.Println("leading"); cancel() }, OnStoppedLeading: func() {},
		},
	})
	must(err)
	elector.Run(ctx)
}

func written(ctx context.Context, client kubernetes.Interface) {
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "go", Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "typed", Namespace: namespace},
		Reason:         "Tried", FirstTimestamp: now, LastTimestamp: now, Count: 1, Type: corev1.EventTypeNormal,
	}
	_, err := client.CoreV1().Events(namespace).Create(ctx, event, metav1.CreateOptions{})
	must(err)
	watch, err := client.CoreV1().Events(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "reason=Tried"})
	must(err)
	fmt.Println("event", (<-watch.ResultChan()).Object.(*corev1.Event).Reason)
	watch.Stop()
}

func recorded(ctx context.Context, client kubernetes.Interface) {
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	defer broadcaster.Shutdown()
	must(broadcaster.StartRecordingToSinkWithContext(ctx))
	watch, err := client.EventsV1().Events(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "reason=Newer"})
	must(err)
	regarding := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Name: "typed", Namespace: namespace}
	broadcaster.NewRecorder(scheme.Scheme, "example.com/go").Eventf(regarding, nil, corev1.EventTypeNormal, "Newer", "Trying", "of %d", 1)
	fmt.Println("recorded", (<-watch.ResultChan()).Object.(*eventsv1.Event).Reason)
	watch.Stop()
}
