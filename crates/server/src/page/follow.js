// Follows the end of the conversation while the reader is there, and only then; a button leads back to it.

const NEAR = 24;

export class Follow {
  constructor(scroller, jump) {
    this.scroller = scroller;
    this.jump = jump;
    this.following = true;
    this.last = 0;
    scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    jump.addEventListener("click", () => {
      this.toEnd();
      scroller.focus({ preventScroll: true });
    });
    new ResizeObserver(() => this.grown()).observe(scroller);
  }

  near() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  /// Only going up ends following: growth leaves the end too, before it is followed.
  scrolled() {
    const { scrollTop } = this.scroller;
    if (this.near()) this.following = true;
    else if (scrollTop < this.last - 1) this.following = false;
    this.last = scrollTop;
    this.jump.hidden = this.near();
  }

  /// To be called when the conversation has grown. The reader may have gone up just now, before the browser says so.
  grown() {
    this.scrolled();
    if (this.following) {
      this.scroller.scrollTop = this.scroller.scrollHeight;
      this.last = this.scroller.scrollTop;
    }
    this.jump.hidden = this.near();
  }

  toEnd() {
    this.following = true;
    this.last = 0;
    this.grown();
  }
}
