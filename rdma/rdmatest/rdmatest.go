package rdmatest

import (
	"testing"

	"github.com/pdlog/pdlog/rdma"
)

// Run runs the suite. newProvider is called once for each test.
func Run(t *testing.T, newProvider func(t *testing.T) rdma.Provider) {
	if runChild(t, newProvider) {
		return
	}
	for _, c := range []struct {
		name string
		test func(*testing.T, rdma.Provider)
	}{
		{"CapsAndInfoAreFilledIn", testCaps},
		{"WriteReadsBackWithChecksums", testReadBack},
		{"MappedAndDescriptorMemoryRegister", testMemory},
		{"HeapAndUnsealedMemoryIsRefused", testBadMemory},
		{"NotifComesBeforeCompletionAndInOrder", testOrder},
		{"WriteUnderSeveralKeysIsOneTransfer", testSeveralKeys},
		{"BadBatchPostsNothing", testBadBatch},
		{"OutOfRangeIsRefused", testOutOfRange},
		{"BadGrantIsRefused", testBadGrant},
		{"WrongKeyIsRefused", testWrongKey},
		{"WrongPeerIsRefused", testWrongPeer},
		{"RevokedKeyIsRefused", testRevokedKey},
		{"RevokeOfAnIdleLeaseAnswersTwice", testRevokeIdle},
		{"DeregisterWaitsForLeases", testDeregister},
		{"RevokeMidTransferLetsNothingLandAfter", testRevokeMidTransfer},
		{"RevokeOfOneLeaseLeavesTheOtherStreaming", testRevokeBeside},
		{"QueueFullPostsAPart", testPartial},
		{"CleanDrain", testCleanDrain},
		{"SealedTagTakesNoPost", testSealed},
		{"AbortMakesDrainUncleanUntilTheEndIsKnown", testAbort},
		{"CloseTellsOfEveryTransfer", testClose},
		{"SeveralConnectionsCarryAllTags", testSeveralConns},
		{"RestartedTargetKnowsNoOldKey", testRestart},
		{"KilledWriterIsGone", testKilledWriter},
		{"KilledTargetLeavesWritesUncertain", testKilledTarget},
		{"StoppedWriterNeverWritesAfterItsFence", testStoppedWriter},
		{"ReplacedWriterNeverWritesAfterItsFence", testReplacedWriter},
		{"PartitionedWriterNeverWritesAfterItsFence", testPartitionedWriter},
		{"ChecksumsFindWhatChanged", testVerify},
		{"VerifyWithoutChecksumsSaysSo", testVerifyOff},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newProvider(t)) })
	}
}
