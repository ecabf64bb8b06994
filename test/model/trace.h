/* The trace that the model follows: lines "kind use rank" of the file that
 * PDLOG_TRACE names.  Kind 255 is its end. */
#include <stdio.h>
#include <stdlib.h>

static int trace_len = -1;
static unsigned char trace[65536][3];

static void trace_load(void)
{
	int k, u, r;
	FILE *f = fopen(getenv("PDLOG_TRACE"), "r");
	if (!f) { perror("PDLOG_TRACE"); exit(3); }
	for (trace_len = 0; trace_len < 65535 && fscanf(f, "%d %d %d", &k, &u, &r) == 3; trace_len++) {
		trace[trace_len][0] = k; trace[trace_len][1] = u; trace[trace_len][2] = r;
	}
	trace[trace_len][0] = 255;
	fclose(f);
}

static int step_kind(int pos) { if (trace_len < 0) trace_load(); return trace[pos][0]; }
static int step_use(int pos) { return trace[pos][1]; }
static int step_rank(int pos) { return trace[pos][2]; }
