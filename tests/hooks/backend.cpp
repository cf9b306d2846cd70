// A backend that torch's FlightRecorderHook records, on Gloo: as nccl2 it does not notice a peer that
// is gone or another size of an all_reduce until the timeout of the group. In one form a thread looks about once a
// second which ops have ended, and pushes their completion; in the other form nothing does, and the
// hook retires each op when it is issued.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include <c10/core/Event.h>
#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>
#include <torch/csrc/utils/pybind.h>

namespace {

using c10::intrusive_ptr;
using c10d::OpType;
using c10d::Work;
using Clock = std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using Counts = std::vector<int64_t>;
using Milliseconds = std::chrono::milliseconds;

constexpr auto kLook = Milliseconds(1000);
constexpr int64_t kSmall = 128;
std::atomic<uint64_t> keys{1};

// What the works and the thread share; it outlives the backend.
struct Watch {
  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  std::list<intrusive_ptr<Work>> issued;

  // Hooks run without this lock: FlightRecorderHook takes it while it holds a lock that they need.
  std::mutex hooks_mutex;
  std::map<int64_t, c10d::CompletionHook> completion;
  std::map<int64_t, c10d::AbortHook> abort;

  template <typename Hook>
  std::map<int64_t, Hook> copy(const std::map<int64_t, Hook>& hooks) {
    std::lock_guard<std::mutex> lock(hooks_mutex);
    return hooks;
  }

  void look() {
    std::unique_lock<std::mutex> lock(mutex);
    while (!changed.wait_for(lock, kLook, [this] { return stopped; })) {
      auto mine = issued;
      lock.unlock();
      mine.remove_if([](const auto& work) { return !work->isCompleted(); });
      for (const auto& work : mine) {
        for (const auto& [id, hook] : copy(completion)) {
          hook({work->getCompletionKey(), std::nullopt});
        }
      }
      lock.lock();
      for (const auto& work : mine) {
        issued.remove(work);
      }
      lock.unlock();
      mine.clear();
      lock.lock();
    }
  }
};

struct Watched : Work {
  Watched(intrusive_ptr<Work> work, OpType type, Milliseconds timeout, std::shared_ptr<Watch> watch)
      : Work(-1, type), work_(std::move(work)), deadline_(Clock::now() + timeout),
        watch_(std::move(watch)) {}

  // Of an op that failed it is never true: no peer is known to have gone. Some of Gloo's works are
  // not marked as completed after they were waited for.
  bool isCompleted() override {
    return done_ || (work_->isCompleted() && work_->isSuccess());
  }
  bool isSuccess() const override {
    return done_ || work_->isSuccess();
  }
  bool wait(Milliseconds timeout) override {
    try {
      done_ = work_->wait(timeout);
      return done_;
    } catch (...) {
      std::this_thread::sleep_until(deadline_);
      for (const auto& [id, hook] : watch_->copy(watch_->abort)) {
        hook();
      }
      throw;
    }
  }
  std::exception_ptr exception() const override {
    return work_->exception();
  }
  int sourceRank() const override {
    return work_->sourceRank();
  }
  Tensors result() override {
    return work_->result();
  }
  intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return work_->getFuture();
  }
  uint64_t getCompletionKey() const override {
    return key_;
  }

  const intrusive_ptr<Work> work_;
  const Clock::time_point deadline_;
  const std::shared_ptr<Watch> watch_;
  const uint64_t key_ = keys++;
  std::atomic<bool> done_{false};
};

#define OP(type, name, parameters, ...)                       \
  intrusive_ptr<Work> name parameters override {              \
    return watched(OpType::type, gloo_->name(__VA_ARGS__));   \
  }

class Wrapper : public c10d::Backend {
 public:
  Wrapper(intrusive_ptr<c10d::Backend> gloo, intrusive_ptr<c10d::Backend> large, std::string name,
          Milliseconds timeout, bool pushes)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), large_(std::move(large)),
        name_(std::move(name)), options_(c10::make_intrusive<Options>(name_, timeout)), pushes_(pushes),
        watch_(std::make_shared<Watch>()) {
    if (pushes_) {
      std::thread([watch = watch_] { watch->look(); }).detach();
    }
  }
  ~Wrapper() override {
    std::lock_guard<std::mutex> lock(watch_->mutex);
    watch_->stopped = true;
    watch_->changed.notify_all();
  }

  const std::string getBackendName() const override {
    return name_;
  }
  intrusive_ptr<Options> getBackendOptions() override {
    return options_;
  }
  bool supportsCompletionHooks() const override {
    return pushes_;
  }
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override {
    std::lock_guard<std::mutex> lock(watch_->hooks_mutex);
    watch_->completion[id] = std::move(hook);
  }
  void unregisterCompletionHook(int64_t id) override {
    std::lock_guard<std::mutex> lock(watch_->hooks_mutex);
    watch_->completion.erase(id);
  }
  bool supportsAbortHooks() const override {
    return true;
  }
  void registerAbortHook(int64_t id, c10d::AbortHook hook) override {
    std::lock_guard<std::mutex> lock(watch_->hooks_mutex);
    watch_->abort[id] = std::move(hook);
  }
  void unregisterAbortHook(int64_t id) override {
    std::lock_guard<std::mutex> lock(watch_->hooks_mutex);
    watch_->abort.erase(id);
  }

  OP(BROADCAST, broadcast, (Tensors & t, const c10d::BroadcastOptions& o), t, o)
  // Larger tensors go over other connections, so that one of another size is never met: Gloo would
  // end the process.
  intrusive_ptr<Work> allreduce(Tensors& t, const c10d::AllreduceOptions& o) override {
    return watched(OpType::ALLREDUCE, (t.at(0).numel() > kSmall ? large_ : gloo_)->allreduce(t, o));
  }
  OP(ALLREDUCE_COALESCED, allreduce_coalesced,
     (Tensors & t, const c10d::AllreduceCoalescedOptions& o), t, o)
  OP(REDUCE, reduce, (Tensors & t, const c10d::ReduceOptions& o), t, o)
  OP(ALLGATHER, allgather, (Lists & out, Tensors& in, const c10d::AllgatherOptions& o), out, in, o)
  OP(_ALLGATHER_BASE, all_gather_single,
     (at::Tensor & out, at::Tensor& in, const c10d::AllgatherOptions& o), out, in, o)
  OP(GATHER, gather, (Lists & out, Tensors& in, const c10d::GatherOptions& o), out, in, o)
  OP(SCATTER, scatter, (Tensors & out, Lists& in, const c10d::ScatterOptions& o), out, in, o)
  OP(REDUCE_SCATTER, reduce_scatter,
     (Tensors & out, Lists& in, const c10d::ReduceScatterOptions& o), out, in, o)
  OP(_REDUCE_SCATTER_BASE, reduce_scatter_single,
     (at::Tensor & out, at::Tensor& in, const c10d::ReduceScatterOptions& o), out, in, o)
  OP(ALLTOALL_BASE, all_to_all_single,
     (at::Tensor & out, at::Tensor& in, Counts& a, Counts& b, const c10d::AllToAllOptions& o),
     out, in, a, b, o)
  OP(ALLTOALL, alltoall, (Tensors & out, Tensors& in, const c10d::AllToAllOptions& o), out, in, o)
  OP(SEND, send, (Tensors & t, int to, int tag), t, to, tag)
  OP(RECV, recv, (Tensors & t, int from, int tag), t, from, tag)
  OP(RECVANYSOURCE, recvAnysource, (Tensors & t, int tag), t, tag)
  OP(BARRIER, barrier, (const c10d::BarrierOptions& o), o)

 private:
  intrusive_ptr<Work> watched(OpType type, intrusive_ptr<Work> work) {
    auto mine = c10::make_intrusive<Watched>(std::move(work), type, options_->timeout, watch_);
    if (pushes_) {
      std::lock_guard<std::mutex> lock(watch_->mutex);
      watch_->issued.push_back(mine);
    }
    return mine;
  }

  const intrusive_ptr<c10d::Backend> gloo_, large_;
  const std::string name_;
  const intrusive_ptr<Options> options_;
  const bool pushes_;
  const std::shared_ptr<Watch> watch_;
};

intrusive_ptr<c10d::Backend> wrap(intrusive_ptr<c10d::Backend> gloo,
                                  intrusive_ptr<c10d::Backend> large, std::string name,
                                  Milliseconds timeout, bool pushes) {
  // The ops are recorded by the hook only.
  c10d::getFlightRecorder(c10d::kDefaultFRBackend)->enabled_ = false;
  return c10::make_intrusive<Wrapper>(std::move(gloo), std::move(large), std::move(name), timeout,
                                      pushes);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("wrap", &wrap);
}
