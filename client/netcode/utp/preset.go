package utp

import "time"

// Pipelines of NetcodeForEntities.
const (
	EntitiesUnreliable PipelineID = 1 // null
	EntitiesReliable   PipelineID = 2 // reliable sequenced
	EntitiesFragmented PipelineID = 3 // fragmentation
)

// Pipelines of NetcodeForGameObjects.
const (
	GameObjectsUnreliable PipelineID = 1 // fragmentation
	GameObjectsSequenced  PipelineID = 2 // fragmentation, unreliable sequenced
	GameObjectsReliable   PipelineID = 3 // reliable sequenced
)

// NetcodeForEntities returns the configuration whose pipelines, window and
// capacities are those of Netcode for Entities.
func NetcodeForEntities() Config {
	return Config{
		Pipelines: []Pipeline{
			{StageNull},
			{StageReliableSequenced},
			{StageFragmentation},
		},
		Window:           32,
		FragmentCapacity: 16 << 10,
	}
}

// NetcodeForGameObjects returns the configuration whose pipelines, window and
// capacities are those of Netcode for GameObjects 1.5 to 2.13. It resends after
// 500 ms at most; over a relay NGO takes 750 ms.
func NetcodeForGameObjects() Config {
	return Config{
		Pipelines: []Pipeline{
			{StageFragmentation},
			{StageFragmentation, StageUnreliableSequenced},
			{StageReliableSequenced},
		},
		Window:           64,
		FragmentCapacity: 6148,
		MaxResendTime:    500 * time.Millisecond,
	}
}
