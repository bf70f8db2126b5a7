/* A stream of tagged messages by UCX: the sender rotates over its buffers, and the receiver over its own, and reads every byte. Both sides
 * poll, and each has UNDER_WAY sends or receives under way.
 *
 *     ucx_read send|receive SIZE BUFFERS UNDER_WAY COUNT
 *
 * A process prints the address of its worker, in hexadecimal digits, and takes that of the other one from its standard input. Two
 * rotations come first, to warm up. Then the sender prints the seconds from its first send of COUNT messages until the receiver has read the last. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <ucp/api/ucp.h>

enum { MESSAGE = 1, READ = 2 };

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h peer;
static ucp_mem_h memory;
/* What was read has to be of use, or the compiler leaves the reading out. */
static volatile uint64_t seen;

static void ok(ucs_status_t status, const char *what)
{
    if (status != UCS_OK) {
        fprintf(stderr, "ucx_read: %s: %s\n", what, ucs_status_string(status));
        exit(1);
    }
}

/* Makes a worker, and connects it with that of the other process. */
static void start(void)
{
    ucp_config_t *config;
    ok(ucp_config_read(NULL, NULL, &config), "ucp_config_read");
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ok(ucp_init(&params, config, &context), "ucp_init");
    ucp_config_release(config);
    ucp_worker_params_t single = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    ok(ucp_worker_create(context, &single, &worker), "ucp_worker_create");

    ucp_address_t *address;
    size_t length;
    ok(ucp_worker_get_address(worker, &address, &length), "ucp_worker_get_address");
    for (size_t i = 0; i < length; i++)
        printf("%02x", ((unsigned char *)address)[i]);
    putchar('\n');
    fflush(stdout);

    static char line[1 << 16];
    static unsigned char theirs[sizeof line / 2];
    if (fgets(line, sizeof line, stdin) == NULL)
        exit(1);
    for (size_t i = 0; sscanf(line + 2 * i, "%2hhx", &theirs[i]) == 1; i++)
        ;
    ucp_ep_params_t other = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = (ucp_address_t *)theirs};
    ok(ucp_ep_create(worker, &other, &peer), "ucp_ep_create");
}

/* Memory that UCX allocates, as ucx_perftest has it, so that shared memory can be used in place. */
static unsigned char *allocate(size_t length)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .length = length,
        .flags = UCP_MEM_MAP_ALLOCATE | UCP_MEM_MAP_NONBLOCK,
    };
    ok(ucp_mem_map(context, &params, &memory), "ucp_mem_map");
    ucp_mem_attr_t attributes = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    ok(ucp_mem_query(memory, &attributes), "ucp_mem_query");
    unsigned char *bytes = attributes.address;
    for (size_t i = 0; i < length; i++)
        bytes[i] = 3;
    return bytes;
}

/* Begins a send or a receive. The result may be NULL: a send that is done. */
static void *begin(int sends, void *buffer, size_t size, ucp_tag_t tag)
{
    static const ucp_request_param_t as_it_is = {0}, with_request = {.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL};
    void *request = sends ? ucp_tag_send_nbx(peer, buffer, size, tag, &as_it_is)
                          : ucp_tag_recv_nbx(worker, buffer, size, tag, UINT64_MAX, &with_request);
    if (UCS_PTR_IS_ERR(request))
        ok(UCS_PTR_STATUS(request), "a message");
    return request;
}

static void end(void *request)
{
    ucs_status_t status;
    ucp_worker_progress(worker);
    if (request == NULL)
        return;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
        ucp_worker_progress(worker);
    ok(status, "a message");
    ucp_request_free(request);
}

static void read_all(const unsigned char *bytes, size_t size)
{
    const uint64_t *words = (const uint64_t *)bytes;
    uint64_t sum = 0;
    for (size_t i = 0; i < size / sizeof *words; i++)
        sum += words[i];
    seen = sum;
}

/* Sends or receives so many messages, and returns when the receiver has read them. */
static void stream(int sends, unsigned char *bytes, size_t size, size_t buffers, size_t under_way, size_t count)
{
    void **requests = calloc(under_way, sizeof *requests);
    unsigned char word[8] = {0};
    for (size_t begun = 0, ended = 0; ended < count; ended++) {
        for (; begun < count && begun < ended + under_way; begun++)
            requests[begun % under_way] = begin(sends, bytes + begun % buffers * size, size, MESSAGE);
        end(requests[ended % under_way]);
        if (!sends)
            read_all(bytes + ended % buffers * size, size);
    }
    end(begin(!sends, word, sizeof word, READ));
    free(requests);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: ucx_read send|receive SIZE BUFFERS UNDER_WAY COUNT\n");
        return 2;
    }
    int sends = argv[1][0] == 's';
    size_t size = strtoull(argv[2], NULL, 10), buffers = strtoull(argv[3], NULL, 10);
    size_t under_way = strtoull(argv[4], NULL, 10), count = strtoull(argv[5], NULL, 10);
    start();
    unsigned char *bytes = allocate(size * buffers);
    stream(sends, bytes, size, buffers, under_way, 2 * buffers);
    double began = now();
    stream(sends, bytes, size, buffers, under_way, count);
    if (sends)
        printf("%.9f\n", now() - began);
    fflush(stdout);
    /* What it has said is still under way; the measurement ends it. */
    while (!sends)
        ucp_worker_progress(worker);
    return 0;
}
